"""replaced"""
