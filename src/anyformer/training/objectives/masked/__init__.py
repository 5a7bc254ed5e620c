"""masked"""
