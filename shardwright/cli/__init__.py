"""The command line: `shardwright check job.sh` and its siblings."""
