"""This file lets pytest find the networks of this folder (planted_networks) from the folders below."""
