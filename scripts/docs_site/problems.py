"""What may be wrong with a build of the site."""


class BadSiteError(Exception):
    """Something is wrong with the pages; each line of the message names one problem."""
