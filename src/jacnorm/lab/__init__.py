"""The paper's experiments. Needs the extra `lab`; the library never imports it."""
