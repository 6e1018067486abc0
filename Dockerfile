FROM python:3.12-slim

ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
WORKDIR /shardwright

COPY requirements.lock .
RUN pip install --no-cache-dir --require-hashes -r requirements.lock

COPY models models
COPY service service
COPY migrations migrations
RUN python -m service.tools.warm_up

RUN useradd --system shardwright && mkdir data && chown shardwright data
USER shardwright
ENV SHARDWRIGHT_HOST=0.0.0.0 SHARDWRIGHT_DATABASE_URL=sqlite:///data/shardwright.db
EXPOSE 8000

HEALTHCHECK --interval=10s --timeout=3s --start-period=60s \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/readyz', timeout=2)"]
CMD ["python", "-m", "service"]
