import sys

from revelator import Client
from revelator.api.answer import answer
from revelator.models import Answer, AnswerRequest, Problem

client = Client(base_url=sys.argv[1])
found = answer.sync(client=client, body=AnswerRequest(question=sys.argv[2]))
assert isinstance(found, Answer)
print(found.answer, "|", found.citations[0].title)
refused = answer.sync(client=client, body=AnswerRequest(question=""))
assert isinstance(refused, Problem)
print(refused.status)
