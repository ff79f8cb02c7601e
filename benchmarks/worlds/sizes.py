"""The sizes of messages, in bytes. Imports nothing: who reads the results needs no torch."""

SIZES = {"8 B": 8, "4 KiB": 2**12, "1 MiB": 2**20, "16 MiB": 2**24, "64 MiB": 2**26}
