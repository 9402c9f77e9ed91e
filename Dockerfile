# Headwater's processes: gateway, worker, projector. Kafka and Postgres have separate images.
FROM python:3.13.14-slim@sha256:9662417aace5ae7b8e2609cce472b72a8958e134ba372808abe9cc1a0c0125e6 AS build

ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
# With pip, which installs the requirements of deployments; uv is used instead if an image adds it.
RUN python -m venv /opt/headwater
ENV PATH=/opt/headwater/bin:$PATH

# Only the lock files first, so that this layer is rebuilt only when a package changes.
COPY requirements.txt requirements-build.txt /src/
RUN pip install --require-hashes --only-binary :all: -r /src/requirements.txt
# The build tools have a separate environment, which is not part of the image.
RUN python -m venv /opt/build \
    && /opt/build/bin/pip install --require-hashes --only-binary :all: -r /src/requirements-build.txt

COPY pyproject.toml README.md /src/
COPY src /src/src
COPY schemas /src/schemas
COPY processors /src/processors
COPY streams /src/streams
COPY projections /src/projections
COPY gateway /src/gateway
# With build isolation, pip would download and run the newest setuptools, without a known hash.
RUN /opt/build/bin/pip wheel --no-deps --no-build-isolation --wheel-dir /dist /src \
    && pip install --no-deps --no-index /dist/*.whl


FROM python:3.13.14-slim@sha256:9662417aace5ae7b8e2609cce472b72a8958e134ba372808abe9cc1a0c0125e6

# A numeric id, so that an orchestrator can verify that it is not root.
RUN useradd --uid 10001 --create-home --home-dir /var/lib/headwater headwater
COPY --from=build /opt/headwater /opt/headwater
ENV PATH=/opt/headwater/bin:$PATH PYTHONUNBUFFERED=1
USER 10001
WORKDIR /var/lib/headwater
# Mount points: a new volume gets the owner and mode of the folder on which it is mounted.
RUN mkdir -m 700 .headwater .headwater/state .headwater/blobs

EXPOSE 8080 9600
ENTRYPOINT ["headwater"]
CMD ["serve"]
