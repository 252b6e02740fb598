"""Adapts the documents for mdbook, and checks the links of the book that mdbook has built.

    book.py supports RENDERER    mdbook asks whether the book needs this preprocessor: always
    book.py                      a preprocessor of mdbook: reads a book from standard input, writes it
    book.py check DIRECTORY      fails if a link in the HTML files of DIRECTORY leads nowhere

The documents link to each other and to source files as files of the repository, so that the links work
where the repository is browsed. mdbook knows only what lies in docs/. The preprocessor bridges that:

- A chapter from outside docs/, such as `../README.md` in docs/SUMMARY.md, becomes a page of the book.
- Each source file that a document links becomes a page, too, below the last chapter *Files of the code*.
- Each link leads to the page of its file.
"""

import html.parser
import json
import os
import posixpath
import re
import subprocess
import sys
import urllib.parse

SOURCE = "docs"
CODE = re.compile(r"^```.*?^```$|`(?:[^`\n]|\n(?!\n))+`", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
LANGUAGES = {".rs": "rust,ignore", ".toml": "toml", ".py": "python"}


class Repository:
    """The pages of the book, by the files of the repository that they show."""

    def __init__(self):
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            check=True, stdout=subprocess.PIPE, text=True,
        )
        self.files = {name for name in listed.stdout.split("\0") if os.path.isfile(name)}
        self.folders = {folder for name in self.files for folder in parents(name)}
        self.linked = []

    def convert(self, book):
        found = list(chapters(book["items"]))
        files = [posixpath.normpath(posixpath.join(SOURCE, chapter["path"])) for chapter in found]
        documents = {name for name in self.files if name.startswith(f"{SOURCE}/") and name.endswith(".md")}
        missing = documents - set(files) - {f"{SOURCE}/SUMMARY.md"}
        if missing:
            sys.exit(f"{SOURCE}/SUMMARY.md lacks {', '.join(sorted(missing))}")
        for chapter, name in zip(found, files):
            chapter["content"] = self.text(name, chapter["content"], files)
            chapter["path"] = page(name)
        book["items"].append("Separator")
        book["items"].append({"Chapter": self.code(1 + max(number(chapter) for chapter in found), files)})

    def text(self, name, content, pages):
        """Returns the content of a document with links to pages."""
        def replace(match):
            target, mark, anchor = match[1].partition("#")
            if not target or "://" in target:
                return match[0]
            wanted = posixpath.normpath(posixpath.join(posixpath.dirname(name), target))
            return f"]({self.target(name, wanted, pages)}{mark}{anchor})"
        done, parts = 0, []
        for code in CODE.finditer(content):
            parts += [LINK.sub(replace, content[done:code.start()]), code[0]]
            done = code.end()
        return "".join(parts) + LINK.sub(replace, content[done:])

    def target(self, name, wanted, pages):
        """Returns the link from the page of the file `name` to that of the file or folder `wanted`."""
        if wanted in pages or (wanted in self.files and wanted.startswith(f"{SOURCE}/")):
            linked = page(wanted)
        elif wanted in self.files | self.folders:
            if wanted not in self.linked:
                self.linked.append(wanted)
            linked = code_page(wanted)
        else:
            sys.exit(f"{name} links to {wanted}, which does not exist")
        return posixpath.relpath(linked, posixpath.dirname(page(name)))

    def code(self, chapter, pages):
        """Returns the last chapter: a page for each file or folder of the code that a document links."""
        for folder in [name for name in self.linked if name in self.folders]:
            for member in self.members(folder):
                self.target(folder, member, pages)
        shown = []
        for turn, name in enumerate(sorted(self.linked)):
            text = self.listing(name) if name in self.folders else source(name)
            place, above = [chapter, turn + 1], ["Files of the code"]
            shown.append({"Chapter": new_chapter(name, code_page(name), text, place, above)})
        text = "The pages of this chapter are the source files that other pages link.\n"
        last = new_chapter("Files of the code", "crates/index.md", text, [chapter], [])
        return last | {"sub_items": shown}

    def members(self, folder):
        """Returns the files of a folder, without those of its folders."""
        return sorted(name for name in self.files if posixpath.dirname(name) == folder)

    def listing(self, folder):
        """Returns the text of a folder's page: links to the pages of its files."""
        here = posixpath.dirname(code_page(folder))
        pages = [(name, posixpath.relpath(code_page(name), here)) for name in self.members(folder)]
        return "".join(f"- [{posixpath.basename(name)}]({link})\n" for name, link in pages)


def chapters(items):
    """Returns all chapters, and those below them."""
    for item in items:
        if isinstance(item, dict) and "Chapter" in item:
            yield item["Chapter"]
            yield from chapters(item["Chapter"]["sub_items"])


def number(chapter):
    return (chapter["number"] or [0])[0]


def parents(name):
    """Returns the folders above a file."""
    while name := posixpath.dirname(name):
        yield name


def page(name):
    """Returns the page of a document: its path from docs/, or from the root if it lies elsewhere."""
    folder, last = posixpath.split(name.removeprefix(f"{SOURCE}/"))
    return posixpath.join(folder, "index.md" if last == "README.md" else last)


def code_page(name):
    return f"{name if name.startswith('crates/') else 'crates/' + name}.md"


def source(name):
    """Returns a code block with the text of a file. Its fence is longer than any in the text."""
    with open(name, encoding="utf-8") as file:
        text = file.read()
    fence = "`" * max([3, *(1 + len(each) for each in re.findall(r"`{3,}", text))])
    language = LANGUAGES.get(posixpath.splitext(name)[1], "text")
    return f"{fence}{language}\n{text.rstrip()}\n{fence}\n"


def new_chapter(name, path, text, place, above):
    return {
        "name": name, "content": f"# {name}\n\n{text}", "number": place, "sub_items": [], "path": path,
        "source_path": None, "parent_names": above,
    }


class Page(html.parser.HTMLParser):
    """The links and the anchors of an HTML file."""

    def __init__(self, path):
        super().__init__()
        self.links, self.anchors = [], set()
        with open(path, encoding="utf-8") as file:
            self.feed(file.read())

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self.anchors.update(value for key, value in attrs if key == "id" or (tag == "a" and key == "name"))
        self.links += [attributes[key] for key in ("href", "src") if attributes.get(key)]


def check(directory):
    """Checks all links of the HTML files. Links to other sites are not followed."""
    paths = [posixpath.join(place, name) for place, _, names in os.walk(directory) for name in names]
    pages = {path: Page(path) for path in paths if path.endswith(".html")}
    # A server shows this page at any address, so its links begin at the root of the site.
    pages.pop(posixpath.join(directory, "404.html"), None)
    failures, checked = [], 0
    for path, source in sorted(pages.items()):
        for link in source.links:
            parsed = urllib.parse.urlsplit(link)
            if parsed.scheme or parsed.netloc:
                continue
            checked += 1
            target = path
            if parsed.path:
                wanted = urllib.parse.unquote(parsed.path)
                target = posixpath.normpath(posixpath.join(posixpath.dirname(path), wanted))
            if os.path.isdir(target):
                target = posixpath.join(target, "index.html")
            anchor = urllib.parse.unquote(parsed.fragment)
            if not os.path.isfile(target):
                failures.append(f"{path}: {link} leads to no file")
            elif anchor and target in pages and anchor not in pages[target].anchors:
                failures.append(f"{path}: {link} leads to no heading")
    for failure in failures:
        print(failure)
    print(f"{len(pages)} pages, {checked} links, {len(failures)} of them broken")
    if failures or not checked:
        sys.exit(1)


def main():
    if sys.argv[1:2] == ["supports"]:
        return
    if sys.argv[1:2] == ["check"]:
        check(sys.argv[2])
        return
    _, book = json.load(sys.stdin)
    Repository().convert(book)
    json.dump(book, sys.stdout)


if __name__ == "__main__":
    main()
