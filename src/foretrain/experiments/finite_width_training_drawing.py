def draw(data):
    return None
