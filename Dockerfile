# Headwater's own parts: gateway, worker, projector. Kafka and Postgres are images of their own.
FROM python:3.13.14-slim@sha256:9662417aace5ae7b8e2609cce472b72a8958e134ba372808abe9cc1a0c0125e6 AS build

ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python -m venv /opt/headwater
ENV PATH=/opt/headwater/bin:$PATH

# The locks alone first: this layer is built anew only when a package changes.
COPY requirements.txt requirements-build.txt /src/
RUN pip install --require-hashes --only-binary :all: -r /src/requirements.txt
# What builds the package has an environment of its own, which is not in the image.
RUN python -m venv /opt/build \
    && /opt/build/bin/pip install --require-hashes --only-binary :all: -r /src/requirements-build.txt

COPY pyproject.toml README.md /src/
COPY src /src/src
COPY schemas /src/schemas
COPY processors /src/processors
COPY streams /src/streams
COPY projections /src/projections
COPY gateway /src/gateway
# With isolation pip would fetch the newest setuptools, of which no hash is known, and run it.
RUN /opt/build/bin/pip wheel --no-deps --no-build-isolation --wheel-dir /dist /src \
    && pip install --no-deps --no-index /dist/*.whl


FROM python:3.13.14-slim@sha256:9662417aace5ae7b8e2609cce472b72a8958e134ba372808abe9cc1a0c0125e6

# A number, so that an orchestrator can see that it is not root's.
RUN useradd --uid 10001 --create-home --home-dir /var/lib/headwater headwater
COPY --from=build /opt/headwater /opt/headwater
ENV PATH=/opt/headwater/bin:$PATH PYTHONUNBUFFERED=1
USER 10001
WORKDIR /var/lib/headwater
# Where volumes may be mounted; a new volume has the owner and the mode of the folder that it covers.
RUN mkdir -m 700 .headwater .headwater/state .headwater/blobs

EXPOSE 8080
ENTRYPOINT ["headwater"]
CMD ["serve"]
