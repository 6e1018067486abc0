FROM python:3.12-slim

ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
WORKDIR /shardwright

# requirements-extras.lock has what sweeps on Dask and traces need besides.
ARG LOCK=requirements.lock
COPY ${LOCK} .
RUN pip install --no-cache-dir --require-hashes -r ${LOCK}

COPY models models
COPY service service
COPY migrations migrations
# Byte code, and the machine code of the cost model: the image itself may be read-only when it runs.
RUN python -m compileall -q models service migrations && python -m service.tools.warm_up

# A number, so that Kubernetes can tell that it is not root.
RUN useradd --system --uid 10001 shardwright && mkdir data && chown shardwright data
USER 10001
VOLUME /shardwright/data

# Other machines may reach a container, so that it asks for keys: `python -m service.api_keys create` makes one.
ENV SHARDWRIGHT_HOST=0.0.0.0 SHARDWRIGHT_REQUIRE_API_KEYS=true SHARDWRIGHT_DATABASE_URL=sqlite:///data/shardwright.db
EXPOSE 8000

HEALTHCHECK --interval=10s --timeout=6s --start-period=60s \
    CMD ["python", "-c", "import os, urllib.request; urllib.request.urlopen(f'http://127.0.0.1:{os.environ.get(\"SHARDWRIGHT_PORT\", 8000)}/readyz', timeout=5)"]
CMD ["python", "-m", "service"]
