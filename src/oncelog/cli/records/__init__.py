"""Records in and out of the shell: files, formats, standard input and output."""
