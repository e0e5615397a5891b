# SPDX-License-Identifier: Apache-2.0
"""Splits English prose into sentences, by rules."""

import re

_OPENING, _CLOSING = r'["\'\u201c\u2018(\[]*', r'["\'\u201d\u2019)\]]*'
# The group is the first letter of what follows.
_END = re.compile(rf'(?<=[.!?\u2026]){_CLOSING}\s(?={_OPENING}([^\W_]))')
_LAST_WORD = re.compile(rf'\b([\w.\'\u2019]+)\.{_CLOSING}$')
_INITIALS = re.compile(r'(?:[^\W\d_]\.)*[^\W\d_]')
# After these a sentence goes on.
_TITLES = frozenset(
    'mr mrs ms dr st prof rev hon messrs mme mlle capt col gen lt sgt maj gov '
    'sen rep pres supt vs viz cf e.g i.e'.split()
)
# After these it goes on if a number follows.
_BEFORE_NUMBERS = frozenset(
    'no nos vol vols ch chap p pp fig sec art jan feb mar apr jun jul aug sep '
    'sept oct nov dec'.split()
)


def split(text: str) -> list[str]:
  """Returns the sentences of a paragraph.

  A sentence ends at ``.``, ``!``, ``?`` or an ellipsis, with the quotes and
  brackets that close there, if what follows may begin one: a capital letter
  or a number, perhaps behind an opening quote. A full stop after a title
  (Mr.), an initial (J. or U.S.) or an abbreviation before a number (No. 5) is
  no end.

  Args:
    text: the paragraph; its line ends count as spaces.

  Returns:
    Sentences, with single spaces.

  Example:
    >>> split('"Is he in?" asked Mr. J. Smith. He was not.')
    ['"Is he in?" asked Mr. J. Smith.', 'He was not.']
  """
  text = ' '.join(text.split())
  sentences, start = [], 0
  for end in _END.finditer(text):
    sentence = text[start : end.end()].rstrip()
    if not _goes_on(sentence, following=end[1]):
      sentences.append(sentence)
      start = end.end()
  if start < len(text):
    sentences.append(text[start:])
  return sentences


def _goes_on(sentence, following):
  """Returns whether a sentence goes on after what ends the text."""
  if following.islower():
    return True
  last = _LAST_WORD.search(sentence)
  if not last:
    return False
  word = last[1]
  if _INITIALS.fullmatch(word) and word.isupper():
    return word != 'I'  # "So am I." is common, a name with I. is not.
  word = word.lower()
  return word in _TITLES or (word in _BEFORE_NUMBERS and following.isdigit())
