"""The interface of OpenAI's API: `/v1/chat/completions`, `/v1/responses` and `/v1/models`.

A chat request becomes an ordinary one (`requests.py`), is answered the way all are, and its events
become what this wire can say (`completions.py`, `responses.py`).
"""
