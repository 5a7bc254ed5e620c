"""denoising"""
