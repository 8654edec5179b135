# The platform: control plane, hosted API and by default one listener for deployments from sources (PORTSIDE_OWN_LISTENER).
#
#   docker build -f docker/platform.Dockerfile -t portside .
#   docker run -p 127.0.0.1:8700:8700 -v portside:/data -e DATABASE_URL=postgresql://… portside
ARG PYTHON=python:3.13-slim
FROM ${PYTHON}
# Shown by /info next to the version: --build-arg COMMIT=$(git rev-parse HEAD)
ARG COMMIT=
RUN apt-get update && apt-get install -y --no-install-recommends git ca-certificates && rm -rf /var/lib/apt/lists/*
COPY pyproject.toml requirements.lock README.md LICENSE CHANGELOG.md /src/
COPY src /src/src
COPY examples /src/examples
RUN if [ -n "$COMMIT" ]; then echo "$COMMIT" > /src/src/portside/commit.txt; fi \
 && sed '/^ *--hash/d; s/ *\\$//' /src/requirements.lock > /versions.txt \
 && PIP_CONSTRAINT=/versions.txt pip install --no-cache-dir /src && rm -rf /src /versions.txt \
 && install -d -o 10001 -g 10001 -m 700 /data
ENV PORTSIDE_HOME=/data HOME=/data PORTSIDE_HOST=0.0.0.0 PYTHONUNBUFFERED=1
VOLUME /data
EXPOSE 8700
USER 10001:10001
CMD ["portside", "up", "--no-example"]
