"""Alembic's entry: migrations run on the connection that `eroica_fleet.database.migrate` hands over."""

from alembic import context

from eroica_fleet.database import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    render_as_batch=True,
    transaction_per_migration=False,
)
context.run_migrations()
