# One image for every process of ours: migrate, worker, embed, beat, flower. The embedding model is one of its packages, so
# nothing is downloaded at run time. docker-compose.yml says which command each process runs and how its health is checked.
FROM python:3.12.14-slim-bookworm AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
# PyPI's torch for Linux brings gigabytes of CUDA libraries; this index has the CPU build of the constrained release.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN python -m venv /opt/afterrun
ENV PATH=/opt/afterrun/bin:$PATH
WORKDIR /src

# The big and rarely changed part first, so that it stays in the build cache.
COPY constraints.txt ./
RUN pip install --extra-index-url "$TORCH_INDEX" -c constraints.txt torch

COPY pyproject.toml README.md LICENSE ./
COPY core ./core
COPY workers ./workers
COPY migrations ./migrations
RUN pip install -c constraints.txt '.[flower]'

FROM python:3.12.14-slim-bookworm
RUN useradd --system --uid 10001 --user-group --create-home --home-dir /var/lib/afterrun afterrun
COPY --from=build /opt/afterrun /opt/afterrun
ENV PATH=/opt/afterrun/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    HF_HUB_OFFLINE=1 \
    TOKENIZERS_PARALLELISM=false \
    AFTERRUN_HOME=/var/lib/afterrun
# A named volume takes over owner and mode of the folder that it is laid over.
RUN install -d -o afterrun -g afterrun -m 755 /runs /var/lib/afterrun /var/lib/afterrun/beat
USER afterrun
WORKDIR /var/lib/afterrun
CMD ["afterrun", "--help"]
