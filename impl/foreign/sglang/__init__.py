"""SGLang: its token and page allocators below its radix tree."""
