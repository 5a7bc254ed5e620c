"""contrastive"""
