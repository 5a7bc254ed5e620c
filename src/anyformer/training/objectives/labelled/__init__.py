"""labelled"""
