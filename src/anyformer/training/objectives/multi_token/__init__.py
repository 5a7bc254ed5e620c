"""multi_token"""
