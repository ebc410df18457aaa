"""The Celery side of Afterrun: configuration, tasks, schedule and what a worker process holds."""
