"""The mirror of stored results in MLflow."""

from indexmem.extras import need

need("mlflow", "mlflow", "sqlalchemy")
