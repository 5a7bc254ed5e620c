"""permuted"""
