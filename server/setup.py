"""The packages of the server. `pyproject.toml` beside this says all else."""

from setuptools import find_namespace_packages, setup

setup(
    packages=[
        *find_namespace_packages(include=["models*", "service*"]),
        "service.migrations",
        "service.migrations.versions",
    ],
    # Where nothing is called "migrations" on top, no other project's migrations are in the way.
    package_dir={"service.migrations": "migrations"},
    package_data={"service.migrations": ["script.py.mako"]},
)
