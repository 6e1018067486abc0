#!/bin/bash
#SBATCH --nodes=8 --gpus-per-node=8
srun python pretrain_gpt.py --bf16 --num-layers 32 --hidden-size 4096 \
  --ffn-hidden-size 14336 --swiglu --num-attention-heads 32 \
  --group-query-attention --num-query-groups 8 --normalization RMSNorm \
  --vocab-size 128256 --disable-bias-linear \
  --untie-embeddings-and-output-weights --use-rotary-position-embeddings \
  --seq-length 8192 --max-position-embeddings 8192 \
  --micro-batch-size 1 --global-batch-size 128 \
  --tensor-model-parallel-size 8 --use-distributed-optimizer
