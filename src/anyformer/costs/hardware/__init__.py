"""Devices as data, and what they make of an architecture: time by part, and how many of them it takes."""
