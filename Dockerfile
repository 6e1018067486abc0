FROM python:3.12-slim

ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
WORKDIR /shardwright

# requirements-extras.lock has what sweeps on Dask and traces need besides.
ARG LOCK=requirements.lock
COPY ${LOCK} .
RUN pip install --no-cache-dir --require-hashes -r ${LOCK}

# Machine code of the cost model, and byte code: the image may be read-only when it runs. What takes long is first, so
# that it is done again only when the models or the packages change.
COPY models models
RUN python -c "from models.search.warm_up import warm_up; warm_up()" && python -m compileall -q models
COPY shardwright shardwright
COPY service service
COPY migrations migrations
RUN python -m compileall -q shardwright service migrations

# A number, so that Kubernetes can tell that it is not root.
RUN useradd --uid 10001 --no-create-home --shell /usr/sbin/nologin shardwright && mkdir data && chown shardwright data
USER 10001
VOLUME /shardwright/data

# Other machines may reach a container, so that it asks for keys: `python -m service.api_keys create` makes one.
ENV SHARDWRIGHT_HOST=0.0.0.0 SHARDWRIGHT_REQUIRE_API_KEYS=true SHARDWRIGHT_DATABASE_URL=sqlite:///data/shardwright.db
EXPOSE 8000

HEALTHCHECK --interval=10s --timeout=6s --start-period=60s \
    CMD ["python", "-c", "import os, urllib.request; urllib.request.urlopen(f'http://127.0.0.1:{os.environ.get(\"SHARDWRIGHT_PORT\", 8000)}/readyz', timeout=5)"]
CMD ["python", "-m", "service"]
