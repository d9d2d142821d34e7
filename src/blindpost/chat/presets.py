"""The routers that the app knows from the start. Short links on them name the host alone."""

from __future__ import annotations

import functools

from blindpost.wire.addresses import RouterAddress, Server
from blindpost.wire.links.full import is_full_link
from blindpost.wire.links.short import restored, short_link_from_text

_SIMPLEX = {
    "4": (
        "u2dS9sG8nMNURyZwqASV4yROM28Er0luVTx5X1CsMrU=",
        "o5vmywmrnaxalvz6wi3zicyftgio6psuvyniis6gco6bp6ekl4cqj4id",
    ),
    "5": (
        "hpq7_4gGJiilmz5Rf-CswuU5kZGkm_zOIooSw6yALRg=",
        "jjbyvoemxysm7qxap7m5d5m35jzv5qq6gnlv7s4rsn7tdwwmuqciwpid",
    ),
    "6": (
        "PQUV2eL0t7OStZOoAsPEV2QYWt4-xilbakvGUGOItUo=",
        "bylepyau3ty4czmn77q4fglvperknl4bi2eb2fdy2bh4jxtf32kf73yd",
    ),
    "7": (
        "8Af90NX2TTkKEJAF1RCg69P_Odg2Z-6_J6DOKUqK3rQ=",
        "dbxqutskmmbkbrs7ofi7pmopeyhgi5cxbjbh4ummgmep4r6bz4cbrcid",
    ),
    "8": (
        "0YuTwO05YJWS8rkjn9eLJDjQhFKvIYd8d4xG8X1blIU=",
        "beccx4yfxxbvyhqypaavemqurytl6hozr47wfc7uuecacjqdvwpw2xid",
    ),
    "9": (
        "SkIkI6EPd2D63F4xFKfHk7I1UGZVNn6k1QWZ5rcyr6w=",
        "jssqzccmrcws6bhmn77vgmhfjmhwlyr3u7puw4erkyoosywgl67slqqd",
    ),
    "10": (
        "6iIcWT_dF2zN_w5xzZEY7HI2Prbh3ldP07YTyDexPjE=",
        "rb2pbttocvnbrngnwziclp2f4ckjq65kebafws6g4hy22cdaiv5dwjqd",
    ),
    "11": (
        "1OwYGt-yqOfe2IyVHhxz3ohqo3aCCMjtB-8wn4X_aoY=",
        "6ioorbm6i3yxmuoezrhjk6f6qgkc4syabh7m3so74xunb5nzr4pwgfqd",
    ),
    "12": (
        "UkMFNAXLXeAAe0beCa4w6X_zp18PwxSaSjY17BKUGXQ=",
        "ie42b5weq7zdkghocs3mgxdjeuycheeqqmksntj57rmejagmg4eor5yd",
    ),
    "14": (
        "enEkec4hlR3UtKx2NMpOUK_K4ZuDxjWBO1d9Y4YXVaA=",
        "aspkyu2sopsnizbyfabtsicikr2s4r3ti35jogbcekhm3fsoeyjvgrid",
    ),
    "15": (
        "h--vW7ZSkXPeOUpfxlFGgauQmXNFOzGoizak7Ult7cw=",
        "oauu4bgijybyhczbnxtlggo6hiubahmeutaqineuyy23aojpih3dajad",
    ),
    "16": (
        "hejn2gVIqNU6xjtGM3OwQeuk8ZEbDXVJXAlnSBJBWUA=",
        "p3ktngodzi6qrf7w64mmde3syuzrv57y55hxabqcq3l5p6oi7yzze6qd",
    ),
    "17": (
        "ZKe4uxF4Z_aLJJOEsC-Y6hSkXgQS5-oc442JQGkyP8M=",
        "ogtwfxyi3h2h5weftjjpjmxclhb5ugufa5rcyrmg7j4xlch7qsr5nuqd",
    ),
    "18": (
        "PtsqghzQKU83kYTlQ1VKg996dW4Cw4x_bvpKmiv8uns=",
        "lyqpnwbs2zqfr45jqkncwpywpbtq7jrhxnib5qddtr6npjyezuwd3nqd",
    ),
    "19": (
        "N_McQS3F9TGoh4ER0QstUf55kGnNSd-wXfNPZ7HukcM=",
        "i53bbtoqhlc365k6kxzwdp5w3cdt433s7bwh3y32rcbml2vztiyyz5id",
    ),
}
_FLUX = {
    "1": (
        "xQW_ufMkGE20UrTlBl8QqceG1tbuylXhr9VOLPyRJmw=",
        "qb4yoanyl4p7o33yrknv4rs6qo7ugeb2tu2zo66sbebezs4cpyosarid",
    ),
    "2": (
        "LDnWZVlAUInmjmdpQQoIo6FUinRXGe0q3zi5okXDE4s=",
        "yiqtuh3q4x7hgovkomafsod52wvfjucdljqbbipg5sdssnklgongxbqd",
    ),
    "3": (
        "1jne379u7IDJSxAvXbWb_JgoE7iabcslX0LBF22Rej0=",
        "a5lm4k7ufei66cdck6fy63r4lmkqy3dekmmb7jkfdm5ivi6kfaojshad",
    ),
    "4": (
        "xmAmqj75I9mWrUihLUlI0ZuNLXlIwFIlHRq5Pb6cHAU=",
        "qpcz2axyy66u26hfdd2e23uohcf3y6c36mn7dcuilcgnwjasnrvnxjqd",
    ),
    "5": (
        "rWvBYyTamuRCBYb_KAn-nsejg879ndhiTg5Sq3k0xWA=",
        "4ao347qwiuluyd45xunmii4skjigzuuox53hpdsgbwxqafd4yrticead",
    ),
    "6": (
        "PN7-uqLBToqlf1NxHEaiL35lV2vBpXq8Nj8BW11bU48=",
        "hury6ot3ymebbr2535mlp7gcxzrjpc6oujhtfxcfh2m4fal4xw5fq6qd",
    ),
}


@functools.cache
def preset_servers() -> tuple[Server, ...]:
    """Both operators' routers, each with its host first and its onion host second."""
    named = [(f"smp{number}.simplex.im", *keys) for number, keys in _SIMPLEX.items()]
    named += [(f"smp{number}.simplexonflux.com", *keys) for number, keys in _FLUX.items()]
    return tuple(
        RouterAddress.from_text(f"smp://{key_hash}@{host},{onion}.onion").server
        for host, key_hash, onion in named
    )


def complete(link: str) -> str:
    """A link with the whole identity of its router; only short links on preset routers change."""
    text = link.strip()
    if is_full_link(text):
        return text
    return restored(short_link_from_text(text), preset_servers()).text
