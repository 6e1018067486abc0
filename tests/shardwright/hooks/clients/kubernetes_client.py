"""Reads documents of YAML from standard input by the schemas of Kubernetes and the models of
Kubeflow Trainer, and prints what these say of each kind."""

import json
import sys

import kubernetes_validate
import yaml
from kubeflow_trainer_api import models

said = []
for document in yaml.safe_load_all(sys.stdin.read()):
    kind = document["kind"]
    try:
        if kind == "TrainJob":
            read = models.TrainerV1alpha1TrainJob.from_dict(document)
            said.append([kind, read.to_dict() == document])
        else:
            kubernetes_validate.validate(document, "1.37", strict=True)
            said.append([kind, True])
    except kubernetes_validate.SchemaNotFoundError:
        said.append([kind, None])
    except (kubernetes_validate.ValidationError, ValueError) as error:
        said.append([kind, str(error)[:500]])
print(json.dumps(said))
