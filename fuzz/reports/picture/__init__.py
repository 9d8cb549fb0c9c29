"""The picture of a failure, a trace or a run: one HTML file that needs no network, and the same as columns of text.

`film` records a run as what each operation changed; `sources`, `traces` and `events` make films of programs and reports, of traces, and of KV events;
`differences` tells where model and cache part, `html` joins the files of `page/` and the data to one page, `text` draws for a terminal, `align` lays two
films beside each other.
"""
