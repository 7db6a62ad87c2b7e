# Completions of gdr and of GDRCopy's tools, with the checks and devices of this machine.
. <(gdr completions bash 2> /dev/null)
