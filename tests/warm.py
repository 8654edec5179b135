"""What the process that forks commands and servers of tests has imported."""

import httpx2

import portside.agent.local_graphs
import portside.agent.server
import portside.cli.account
import portside.cli.backup
import portside.cli.client
import portside.cli.deploy
import portside.cli.deployments
import portside.cli.main
import portside.cli.serve
import portside.cli.up
import portside.platform.app

__all__ = ["httpx2", "portside"]
