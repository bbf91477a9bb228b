def proof_page(wanted, done, swept, seed):
    return ""
