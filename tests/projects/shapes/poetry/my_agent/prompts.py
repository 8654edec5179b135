from slugify import slugify

REPLY = slugify("I heard") + ": {}"
