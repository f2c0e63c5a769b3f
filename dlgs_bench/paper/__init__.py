"""The paper's statements and our verdicts."""

PAPERS_BATCH = {"resnet20": 32, "vgg16": 32, "resnet50": 64}  # samples per worker and step
