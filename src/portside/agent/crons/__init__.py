"""Crons: schedules, their records, and firing each instant once, however many processes run."""
