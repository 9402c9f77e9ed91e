"""Lookups of the users of subjects: tables that several providers fill or read."""

from typing import Final

from headwater.processors.providers.provider import Lookup
from headwater.schemas.tables import CONNECTIONS, TERRA_LAB_UPLOADS

#: The user of a Terra connection.
CONNECTION: Final = Lookup(
    table=CONNECTIONS,
    missing="no_connection_for_terra_user",
    expected="a connection of the Terra user",
    cure="connect the user, then replay",
)

#: The user and the upload of a Terra lab report.
LAB_UPLOAD: Final = Lookup(
    table=TERRA_LAB_UPLOADS,
    our_id="upload_id",
    missing="no_lab_upload_for_upload_id",
    expected="a lab upload that Terra calls",
    cure="find out who gave the report to Terra; one that was uploaded here is found, so replay it",
)
