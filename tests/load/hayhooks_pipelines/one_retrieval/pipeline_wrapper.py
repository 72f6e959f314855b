"""One retrieval, one call, streamed: the pipeline that hayhooks serves in `tests.load.hayhooks`.

Runs in the environment of hayhooks. Its variables are set by that program.
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

from hayhooks import BasePipelineWrapper, async_streaming_generator
from haystack import Document, Pipeline
from haystack.components.builders import ChatPromptBuilder
from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.utils import Secret
from haystack_integrations.components.retrievers.elasticsearch import ElasticsearchBM25Retriever
from haystack_integrations.document_stores.elasticsearch import ElasticsearchDocumentStore

PROMPT = """Task: answer
Question: {{ question }}
{% for document in documents %}Doc{{ loop.index }}: "{{ document.meta.title }}: \
{{ document.content }}"
{% endfor %}Answer:"""


class PipelineWrapper(BasePipelineWrapper):
    """Every component has an asynchronous `run`, so that no question holds a thread."""

    def setup(self) -> None:
        hosts = os.environ["BENCH_ELASTICSEARCH"]
        store = ElasticsearchDocumentStore(hosts=hosts, index="hayhooks")
        if not store.count_documents():
            store.write_documents(_documents(Path(os.environ["BENCH_PASSAGES"])))
        retriever = ElasticsearchBM25Retriever(
            document_store=store, top_k=int(os.environ["BENCH_TOP_K"]), fuzziness="0"
        )
        engine = OpenAIChatGenerator(
            api_key=Secret.from_token("none"),
            model="stub-model",
            api_base_url=os.environ["BENCH_ENGINE"],
            generation_kwargs={"max_tokens": 256},
        )
        pipeline = Pipeline()
        pipeline.add_component("retriever", retriever)
        pipeline.add_component("prompt", ChatPromptBuilder([ChatMessage.from_user(PROMPT)]))
        pipeline.add_component("engine", engine)
        pipeline.connect("retriever.documents", "prompt.documents")
        pipeline.connect("prompt.prompt", "engine.messages")
        self.pipeline = pipeline

    async def run_api_async(self, question: str) -> AsyncGenerator[Any, None]:
        run = {"retriever": {"query": question}, "prompt": {"question": question}}
        return async_streaming_generator(pipeline=self.pipeline, pipeline_run_args=run)


def _documents(file: Path) -> list[Document]:
    rows = map(json.loads, file.read_text(encoding="utf-8").splitlines())
    return [
        Document(id=row["id"], content=row["text"], meta={"title": row["title"]}) for row in rows
    ]
