"""seq2seq"""
