"""What operators ask of a platform: how its disk is used, what is wrong with it, and what a person who helps needs.

It reads everything and changes nothing but two things: the notice of a full database, and the system's service.
"""
