# The checkpoint manager: neither torch nor an engine; with S3. A recipe is its first argument.
FROM python:3.11-slim-bookworm
RUN useradd --create-home --uid 1000 tandem

ARG PROFILE=cpu
ARG TORCH_INDEX=
WORKDIR /opt/tandem
COPY requirements requirements
COPY docker/install.sh docker/install.sh
COPY libs libs
COPY services/checkpoint_manager services/checkpoint_manager
RUN docker/install.sh "$PROFILE" checkpoint_manager

USER 1000
WORKDIR /home/tandem
ENTRYPOINT ["python", "-m", "tandem_checkpoint_manager"]
