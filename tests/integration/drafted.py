"""Sessions with drafts, whose orchestrator the test plays: real targets and drafts register with one hub."""

from support import DRAFT_ROLE, Answer, Hub, Inbox


class DraftHub(Hub):
    """What drafts say comes to inboxes of their own: a session has the same number there."""

    def __init__(self, endpoint, **flags):
        super().__init__(endpoint, **flags)
        self.drafts = {}  # routing id -> Inbox

    def _on_hub(self, routing, message):
        if routing in self.drafts and message.session:
            self.drafts[routing].on(message)
            return
        super()._on_hub(routing, message)
        if message.kind == "HELLO" and message.fields[3] == DRAFT_ROLE:
            self.drafts.setdefault(routing, Inbox(self))

    def wait_for(self, role, beside=()):
        """The routing id of a worker of this role that is not among `beside`."""
        def find():
            return [r for r, fields in self.peers.items() if fields[3] == role and r not in beside]

        return self.wait(find, f"no worker of role {role} said HELLO")[0]


class DraftedAnswer(Answer):
    """An answer with a draft: OPEN and END go to both workers."""

    draft = None

    def to_draft(self, kind, *fields, epoch=None):
        self.hub.send(self.draft, kind, self.id, self.epoch if epoch is None else epoch, *fields)

    def open_draft(self, draft, endpoint, incarnation, epoch=None, base=0, **fields):
        self.draft = draft
        f = {"ticket": self.ticket, "hash_seed": self.seed, "base_length": base, "base_hash": self.hashes[base],
             "tokens": self.tokens[base:], "hash": self.hashes[-1], "prompt_length": self.prompt_length,
             "options": list(self.options.values()), "draft_expected": False, "target_endpoint": endpoint,
             "target_incarnation": incarnation, **fields}
        self.to_draft("OPEN", *f.values(), epoch=epoch)
        return self.hub.drafts[draft]

    def end_both(self):
        assert self.end()
        self.to_draft("END")
        return self.hub.drafts[self.draft].expect("ENDED").fields[0]
