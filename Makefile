# Every target makes .venv when it is missing; python3 and make are all that is needed.
PYTHON ?= python3
BIN := .venv/bin
export OMP_NUM_THREADS := 1

.PHONY: demo test test-long test-device check lint types arrows format docs page gallery cards notebooks operators versions wheel clean

demo: .venv/lab
	$(BIN)/jacnorm demo

test: .venv/installed
	$(BIN)/pytest -n 2 --dist loadgroup -m "not long"

test-long: .venv/installed
	$(BIN)/pytest -n 2 --dist loadgroup

# On another device, as in `make test-device JACNORM_DEVICE=cuda`: all tests that are not about the CPU.
JACNORM_DEVICE ?= cuda
test-device: .venv/installed
	JACNORM_DEVICE=$(JACNORM_DEVICE) $(BIN)/pytest -m "not long and not cpu" tests

check: lint types arrows docs page test

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/installed
	$(BIN)/mypy

arrows: .venv/installed
	$(BIN)/lint-imports

format: .venv/installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Into site/. --strict makes warnings errors, unless --quiet hides them from it. The variable silences an advertisement.
docs: .venv/installed
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# Makes the pages of paper/ from its results again, and fails if they told something else.
page: .venv/installed
	find paper -name "*.svg" -delete
	$(BIN)/jacnorm report --markdown paper
	git diff --exit-code --stat -- paper ':!*.svg'
	! git status --porcelain paper | grep -v '^ M' # new or gone; lines may be drawn a little otherwise elsewhere

# Draws the pictures of docs/gallery/ again.
gallery: .venv/installed
	for picture in docs/gallery/*.png; do \
		$(BIN)/python examples/$$(basename $$picture .png).py $$picture || exit 1; done

# Makes the cards of examples/cards.py in cards/ and, with chromium, their pictures in docs/cards/.
cards: .venv/installed
	$(BIN)/python examples/cards.py cards
	for card in images table text; do \
		chromium --headless --no-sandbox --disable-gpu --hide-scrollbars --window-size=1280,1700 \
			--screenshot=docs/cards/$$card.png cards/$$card.html || exit 1; \
		$(BIN)/python -c "from PIL import Image; f = 'docs/cards/$$card.png'; Image.open(f).convert('RGB').quantize(64).save(f, optimize=True)"; done

# Runs the notebooks and keeps their outputs in them.
notebooks: .venv/installed
	$(BIN)/python notebooks/run.py

# Says again which versions were tested, in docs/versions.md.
versions: .venv/installed
	$(BIN)/python docs/versions.py

# Says again how each operator of PyTorch's is served, in docs/operators.md.
operators: .venv/installed
	$(BIN)/python tests/operators.py docs/operators.md

# Builds the source archive and the wheel from it, installs the wheel alone in a fresh environment and tries it there.
wheel: .venv/installed
	$(BIN)/pytest tests/test_wheel.py

PIP := $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt

# All that the commands need; enough for the demo.
.venv/lab: pyproject.toml constraints.txt
	@echo "Installing into .venv; this takes a minute or two."
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) -e '.[lab]'
	touch $@

# torchattacks is an oracle for tests alone; what it declares pins an old requests and pulls torchvision.
.venv/installed: .venv/lab
	@echo "Installing what the tests need; this takes a minute or two."
	$(PIP) -e '.[lab,ray,integrations,rl,docs,dev]'
	$(PIP) --no-deps torchattacks==3.5.1
	touch $@

clean:
	rm -rf .venv build dist site src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
