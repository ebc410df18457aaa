"""The Celery application: `celery -A afterrun_workers.app worker`.

The broker comes from Afterrun's own settings, whatever CELERY_* variables of a host program say.
"""

from __future__ import annotations

from afterrun import settings as settings_module
from afterrun.queue import celery_app
from afterrun_workers import log
from afterrun_workers.schedule import beat_schedule

settings = settings_module.load()

app = celery_app(settings.require_broker(), visibility_timeout=settings.visibility_timeout)
app.conf.update(
    imports=("afterrun_workers.tasks",),
    beat_schedule=beat_schedule(settings),
    beat_max_loop_interval=5,
    beat_enable_remote_control=True,
    # A task is acknowledged when it is done, and handed out again when its process was killed: at least once, each
    # idempotent.
    task_acks_late=True,
    task_reject_on_worker_lost=False,
    task_retry_on_worker_lost=True,
    task_time_limit=600,
    task_soft_time_limit=570,
    worker_prefetch_multiplier=1,
    worker_cancel_long_running_tasks_on_connection_loss=True,
    # Shorter than the stop_grace_period of docker-compose.yml, so that a task is put back and not killed with its
    # message.
    worker_soft_shutdown_timeout=20.0,
    worker_send_task_events=True,
    worker_hijack_root_logger=True,
    broker_connection_retry_on_startup=True,
    broker_connection_max_retries=None,
)
# By name, as only a worker needs it.
app.Task.Request = "afterrun_workers.request:TextFreeRequest"
app.Task.Strategy = "afterrun_workers.request:strategy"
log.install()
