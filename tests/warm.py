"""What the process that forks commands and servers of tests has imported, read and prepared."""

import httpcore2
import httpx2
import uvicorn.lifespan.on
import uvicorn.protocols.http.httptools_impl
import uvloop

import portside.agent.access.authentication
import portside.agent.local_graphs
import portside.agent.server
import portside.cli.account
import portside.cli.backup
import portside.cli.client
import portside.cli.deploy
import portside.cli.deployments
import portside.cli.greeting
import portside.cli.main
import portside.cli.packing
import portside.cli.serve
import portside.cli.up
import portside.dataplane.listener
import portside.identity.passwords
import portside.platform.app
import portside.platform.serving
from tests import certificates
from tests.cheap_backups import derive_keys_cheaply
from tests.copied_postgres import copy_data_folders

__all__ = ["httpcore2", "httpx2", "portside", "uvicorn", "uvloop"]

certificates.share()
copy_data_folders()
derive_keys_cheaply()
# As in the process of the tests (`tests/conftest.py`).
portside.identity.passwords._COST["n"] = 2
# The platform of some agents is in the process of a test, and stands still whenever that does.
portside.agent.access.authentication.PLATFORM_TIMEOUT_S = 600.0
# The first client of a process reads the certificates.
httpx2.Client().close()
