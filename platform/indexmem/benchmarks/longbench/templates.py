"""LongBench's prompts as published, cut where the protocols cut them.

Quoted word for word as data, typographical errors included, from `config/dataset2prompt.json` of
github.com/THUDM/LongBench (MIT, Copyright (c) 2023 THU-KEG & Zhipu AI). The published prompt of a set is
`head + {context} + rest + question + answer_prefix`; `cue` is how the inputs of few-shot sets end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True)
class Template:
    """The parts of a prompt; `{input}` stands for the item's question."""

    head: str
    rest: str  # follows the context; kvpress compresses it with the context
    question: str
    answer_prefix: str = ""
    cue: str = ""


_CONCISELY = (
    "as concisely as you can, using a single phrase or sentence if possible. If the question cannot be answered based "
    'on the information in the article, write "unanswerable". If the question is a yes/no question, answer "yes", '
    '"no", or "unanswerable". Do not provide any explanation.\n\n'
)
_STORY = "asconcisely as you can, using a single phrase if possible. Do not provide any explanation.\n\n"
_PASSAGES = (
    "Answer the question based on the given passages. Only give me the answer and do not output any other words.\n\n"
)

_MULTI_HOP = Template(
    f"{_PASSAGES}The following are given passages.\n", f"\n\n{_PASSAGES}", "Question: {input}\n", "Answer:"
)

TEMPLATES: Mapping[str, Template] = MappingProxyType(
    {
        "narrativeqa": Template(
            "You are given a story, which can be either a novel or a movie script, and a question. Answer the question "
            f"{_STORY}Story: ",
            f"\n\nNow, answer the question based on the story {_STORY}",
            "Question: {input}\n\n",
            "Answer:",
        ),
        "qasper": Template(
            f"You are given a scientific article and a question. Answer the question {_CONCISELY}Article: ",
            f"\n\n Answer the question based on the above article {_CONCISELY}",
            "Question: {input}\n\n",
            "Answer:",
        ),
        "multifieldqa_en": Template(
            "Read the following text and answer briefly.\n\n",
            "\n\nNow, answer the following question based on the above text, only give me the answer and do not output "
            "any other words.\n\n",
            "Question: {input}\n",
            "Answer:",
        ),
        "multifieldqa_zh": Template(
            "阅读以下文字并用中文简短回答：\n\n",
            "\n\n现在请基于上面的文章回答下面的问题，只告诉我答案，不要输出任何其他字词。\n\n",
            "问题：{input}\n",
            "回答：",
        ),
        "hotpotqa": _MULTI_HOP,
        "2wikimqa": _MULTI_HOP,
        "musique": _MULTI_HOP,
        "dureader": Template(
            "请基于给定的文章回答下述问题。\n\n文章：",
            "\n\n请基于上述文章回答下面的问题。\n\n",
            "问题：{input}\n",
            "回答：",
        ),
        "gov_report": Template(
            "You are given a report by a government agency. Write a one-page summary of the report.\n\nReport:\n",
            "\n\n",
            "Now, write a one-page summary of the report.\n\n",
            "Summary:",
        ),
        "qmsum": Template(
            "You are given a meeting transcript and a query containing a question or instruction. Answer the query in "
            "one or more sentences.\n\nTranscript:\n",
            "\n\nNow, answer the query based on the above meeting transcript in one or more sentences.\n\n",
            "Query: {input}\n",
            "Answer:",
        ),
        "multi_news": Template(
            "You are given several news passages. Write a one-page summary of all news. \n\nNews:\n",
            "\n\n",
            "Now, write a one-page summary of all the news.\n\n",
            "Summary:",
        ),
        "vcsum": Template(
            "下面有一段会议记录，请你阅读后，写一段总结，总结会议的内容。\n会议记录：\n", "\n\n", "", "会议总结："
        ),
        "trec": Template(
            "Please determine the type of the question below. Here are some examples of questions.\n\n",
            "\n",
            "{input}",
            cue="Type:",
        ),
        "triviaqa": Template(
            "Answer the question based on the given passage. Only give me the answer and do not output any other "
            "words. The following are some examples.\n\n",
            "\n\n",
            "{input}",
            cue="Answer:",
        ),
        "samsum": Template(
            "Summarize the dialogue into a few short sentences. The following are some examples.\n\n",
            "\n\n",
            "{input}",
            cue="Summary:",
        ),
        "lsht": Template("请判断给定新闻的类别，下面是一些例子。\n\n", "\n", "{input}"),
        "passage_count": Template(
            "There are some paragraphs below sourced from Wikipedia. Some of them may be duplicates. Please carefully "
            "read these paragraphs and determine how many unique paragraphs there are after removing duplicates. In "
            "other words, how many non-repeating paragraphs are there in total?\n\n",
            "\n\n",
            "Please enter the final count of unique paragraphs after removing duplicates. The output format should "
            "only contain the number, such as 1, 2, 3, and so on.\n\n",
            "The final answer is: ",
        ),
        "passage_retrieval_en": Template(
            "Here are 30 paragraphs from Wikipedia, along with an abstract. Please determine which paragraph the "
            "abstract is from.\n\n",
            "\n\nThe following is an abstract.\n\n",
            "{input}\n\nPlease enter the number of the paragraph that the abstract is from. The answer format must be "
            'like "Paragraph 1", "Paragraph 2", etc.\n\n',
            "The answer is: ",
        ),
        "passage_retrieval_zh": Template(
            "以下是若干段落文字，以及其中一个段落的摘要。请确定给定的摘要出自哪一段。\n\n",
            "\n\n下面是一个摘要\n\n",
            '{input}\n\n请输入摘要所属段落的编号。答案格式必须是"段落1"，"段落2"等格式\n\n',
            "答案是：",
        ),
        "lcc": Template("Please complete the code given below. \n", "", "", "Next line of code:\n"),
        "repobench-p": Template("Please complete the code given below. \n", "", "{input}", "Next line of code:\n"),
    }
)
