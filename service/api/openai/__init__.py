"""The interface of OpenAI's API: `/v1/chat/completions`, `/v1/responses` and `/v1/models`.

A chat request is converted to an ordinary one (`requests.py`) and answered like it; its events are
converted to OpenAI's format (`completions.py`, `responses.py`).
"""
