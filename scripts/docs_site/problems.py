"""What may be wrong with a build of the site."""


class CannotBuildError(Exception):
    """What builds the site cannot be had here; the message says what to do."""


class BadSiteError(Exception):
    """Something is wrong with the pages; each line of the message names one problem."""
